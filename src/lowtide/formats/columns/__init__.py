"""Columns of token ids in Parquet and Arrow files, which are decoded once into plain ids on disk."""
