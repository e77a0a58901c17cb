"""Pages of `haotuner report` and `haotuner watch`: panels of figures and tables, each with the source of its data."""
