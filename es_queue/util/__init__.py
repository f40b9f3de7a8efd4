"""Records of individuals, facts about the host, and commands for users."""
