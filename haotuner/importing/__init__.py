"""Models of other systems become graphs."""
