"""Services of the host: files opened with care, scratch folders, limits, processors, ELF files, optional packages."""
