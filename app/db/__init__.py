"""PostgreSQL: tables, and the only SQL of the service. One module per question that is asked of the database."""
