"""One stream a strand: which row has which number, which of them have landed, how far a reader may go."""
