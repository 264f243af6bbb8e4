"""Foreign recordings turned into archives of our own records."""
