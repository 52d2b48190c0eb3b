"""What of a model is refused or warned of before the first sweep."""
