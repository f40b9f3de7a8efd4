"""Records of individuals, facts about the host, and the commands shown to users."""
