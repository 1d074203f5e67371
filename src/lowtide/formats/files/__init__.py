"""Arrays in files, one module per format: ``read`` gives the layout, ``members`` lists the arrays of a file."""
