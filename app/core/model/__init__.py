"""The nouns of Allpass as frozen values. The glossary in ARCHITECTURE.md owns the words."""
