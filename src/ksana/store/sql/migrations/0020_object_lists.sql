-- Governed objects are listed by their keys, in the order of bytes on every database, of one status or of all. The index of a status is
-- over an expression, as those of 0016: only the list uses it.

{sqlite CREATE INDEX governance_objects_status ON governance_objects (status || '', object_key)};
{mysql CREATE INDEX governance_objects_status ON governance_objects (status, object_key)};
{postgres CREATE INDEX governance_objects_status ON governance_objects ((status || ''), object_key COLLATE "C")};

{postgres CREATE INDEX governance_objects_key ON governance_objects (object_key COLLATE "C")};
