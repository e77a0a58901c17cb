"""The race against peers: each contender alone in its process, one running at a time."""
