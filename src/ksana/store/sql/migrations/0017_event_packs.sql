-- Several events of one entity and one commit lie in one row, and `scheduler_events` is a view of them with a row for each. Events written
-- before keep their rows and their ids: up to the row noted in `events.single_to` an event's id is its row's number, afterwards sixteen
-- times that, and its place in the row. (PostgreSQL's `->` fails at a
-- NUL anywhere in the text it takes a value from; `json_array_elements` does not look inside.)

ALTER TABLE scheduler_events RENAME TO event_packs;

{postgres ALTER INDEX scheduler_events_pkey RENAME TO event_packs_pkey};

{insert_ignore} store_facts (name, value) SELECT 'events.single_to', COALESCE(MAX(id), 0) FROM event_packs WHERE id > 0 {on_conflict_ignore};

{sqlite CREATE VIEW scheduler_events (id, ts, entity_type, entity_id, event_type, data_json) AS
SELECT CASE WHEN p.id > CAST(f.value AS INTEGER) THEN p.id * 16 ELSE p.id END, p.ts, p.entity_type, p.entity_id, p.event_type, p.data_json
FROM event_packs AS p, store_facts AS f WHERE p.event_type <> '' AND f.name = 'events.single_to'
UNION ALL
SELECT p.id * 16 + e.key, p.ts, COALESCE(json_extract(e.value, '$[2]'), p.entity_type), COALESCE(json_extract(e.value, '$[3]'), p.entity_id),
  json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]')
FROM event_packs AS p, json_each(p.data_json) AS e WHERE p.event_type = ''};

{postgres CREATE VIEW scheduler_events (id, ts, entity_type, entity_id, event_type, data_json) AS
SELECT CASE WHEN p.id > CAST(f.value AS BIGINT) THEN p.id * 16 ELSE p.id END, p.ts, CAST(p.entity_type AS TEXT), CAST(p.entity_id AS TEXT),
  CAST(p.event_type AS TEXT), p.data_json
FROM event_packs AS p, store_facts AS f WHERE p.event_type <> '' AND f.name = 'events.single_to'
UNION ALL
SELECT p.id * 16 + e.place - 1, p.ts, COALESCE(json_build_array(CAST(a.parts[3] AS JSON)) ->> 0, p.entity_type),
  COALESCE(json_build_array(CAST(a.parts[4] AS JSON)) ->> 0, p.entity_id), json_build_array(CAST(a.parts[1] AS JSON)) ->> 0, a.parts[2]
FROM event_packs AS p CROSS JOIN LATERAL json_array_elements(CASE WHEN p.event_type = '' THEN CAST(p.data_json AS JSON) ELSE '[]' END)
  WITH ORDINALITY AS e (value, place) CROSS JOIN LATERAL (SELECT array_agg(CAST(v.value AS TEXT) ORDER BY v.place) AS parts
  FROM json_array_elements(e.value) WITH ORDINALITY AS v (value, place)) AS a WHERE p.event_type = ''};

{mysql CREATE VIEW scheduler_events (id, ts, entity_type, entity_id, event_type, data_json) AS
SELECT CASE WHEN p.id > CAST(f.value AS SIGNED) THEN p.id * 16 ELSE p.id END, p.ts, p.entity_type, p.entity_id, p.event_type, p.data_json
FROM event_packs AS p, store_facts AS f WHERE p.event_type <> '' AND f.name = 'events.single_to'
UNION ALL
SELECT p.id * 16 + e.place - 1, p.ts, COALESCE(JSON_UNQUOTE(JSON_EXTRACT(p.data_json, CONCAT('$[', e.place - 1, '][2]'))), p.entity_type),
  COALESCE(JSON_UNQUOTE(JSON_EXTRACT(p.data_json, CONCAT('$[', e.place - 1, '][3]'))), p.entity_id),
  JSON_UNQUOTE(JSON_EXTRACT(p.data_json, CONCAT('$[', e.place - 1, '][0]'))), JSON_EXTRACT(p.data_json, CONCAT('$[', e.place - 1, '][1]'))
FROM event_packs AS p, JSON_TABLE(p.data_json, '$[*]' COLUMNS (place FOR ORDINALITY)) AS e WHERE p.event_type = ''};
