"""The schema's revisions. `earlybyte migrate` applies them; a SQLite store is brought up to date when it is opened."""
