"""Races against other libraries: each contender alone in its process, one running at a time."""
