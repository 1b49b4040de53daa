"""Where records live: each module reads one kind of source into the tables that `build` makes a cohort of."""
