-- Strike an instance off the list, unless it was seen lately.
-- KEYS[1] instances by when they were last seen, ms
-- ARGV[1] instance id
-- ARGV[2] the score that was seen; a newer one means that it lives again
-- Answers 1, or 0 if it lives.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) > tonumber(ARGV[2]) then
  return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
