"""One supervised child process for everybody: whatever it does, the parent lives and gets an answer."""
