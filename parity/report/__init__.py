"""What a run leaves behind: files, comparisons of runs, their history, one page of all results."""
