"""``pyro-fnbg``: what is in a store, as lines, as a page, and as a file."""
