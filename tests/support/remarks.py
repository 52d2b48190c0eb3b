"""What a run is begun with where it is slow, hot or idle, as the toys of tests are on purpose."""

import re

# The first words of each warning; pyproject.toml names them, too
FIRST_WORDS = (
    "engine='auto' came to the slowest engine",
    "nothing observed was found to depend on",
    "sites .* are vectors, and so one block each",
    "the run starts at initial_params, and nothing tunes",
    "the nominal likelihood temperature is",
)
REMARKS = re.compile("|".join(FIRST_WORDS))
