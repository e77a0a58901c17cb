"""The nouns everybody uses. Standard library only, no I/O."""
