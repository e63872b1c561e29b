-- Delete a drained inbox.
-- KEYS[1] inbox
-- KEYS[2] drainer
-- KEYS[3] dead letters, which must be empty
-- ARGV[1] our instance id
-- Answers 1, or 0 if another one drains it or something is left.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XLEN', KEYS[1]) > 0 then
  return 0
end
if redis.call('EXISTS', KEYS[3]) == 1 and redis.call('XLEN', KEYS[3]) > 0 then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return 1
