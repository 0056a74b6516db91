"""Small things that pages are made of. Whatever is data goes in as text or as one JSON text, never as markup."""
