"""How changes of the merged stream become the rows of a table. Pure: values in, values out."""
