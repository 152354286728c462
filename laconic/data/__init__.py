"""Where examples come from: feeds, and one loader a data set."""
