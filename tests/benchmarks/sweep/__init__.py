"""Where the time of a fused sweep goes, part by part, and the least that each part can take."""
