"""Token corpora: one module per format, the manifest of Lowtide's own, and from any of them to one layout."""
