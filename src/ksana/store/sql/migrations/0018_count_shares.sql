-- Each connection counts rows in a share of its own, with a random number of 62 bits. SQLite takes any number in any column.

{postgres ALTER TABLE row_counts ALTER COLUMN shard TYPE BIGINT};
{mysql ALTER TABLE row_counts MODIFY shard BIGINT NOT NULL};
