"""Rows of several corpora as one stream: ``mixed.py`` reads them, ``mixture_state.py`` says what states must share."""
