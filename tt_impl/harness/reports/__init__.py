"""Files and tables about one watched program or many."""
