"""Arrays in files, one module per format: ``read`` gives the layout, and where a file holds several, ``members`` lists
them."""
