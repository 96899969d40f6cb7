"""Tables, figures and pages from the rows in results/."""
