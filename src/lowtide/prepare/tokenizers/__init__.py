"""Text to ids and back: ``vocabulary.py`` reads a tokenizer's file, ``encoders.py`` and ``spelling.py`` use it."""
