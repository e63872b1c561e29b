-- The end of a run is noted in its task's row, and changes nothing that an index has. PostgreSQL then writes no new index entries (a HOT
-- update) if the new row fits on the page of the old one: half of each page is left free for that, since firing writes the row too.

{postgres ALTER TABLE tasks SET (fillfactor = 50)};
