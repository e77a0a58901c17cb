"""Child processes under supervision: whatever one does, the parent lives and gets an answer."""
