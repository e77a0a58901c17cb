"""Ways to search a space of schedules, behind one protocol."""
