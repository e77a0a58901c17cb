"""Services of the operating system: files opened with care, scratch folders, limits, processors, ELF files."""
