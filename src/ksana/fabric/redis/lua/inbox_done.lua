-- Remove messages that are handled: XACK alone would leave them in the stream.
-- KEYS[1] inbox
-- ARGV[1] group
-- ARGV[2..] message ids
-- Answers how many were there.
local ids = {unpack(ARGV, 2)}
redis.pcall('XACK', KEYS[1], ARGV[1], unpack(ids))
return redis.call('XDEL', KEYS[1], unpack(ids))
