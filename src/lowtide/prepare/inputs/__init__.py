"""Files in, documents out: ``listing.py`` -> ``sections.py`` -> ``text_blocks.py`` -> ``texts.py``."""
