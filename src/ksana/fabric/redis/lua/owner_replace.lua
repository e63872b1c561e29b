-- Become the owner in place of a former one.
-- KEYS[1] owner key
-- ARGV[1] our instance id
-- ARGV[2] the former owner
-- ARGV[3] time to live, ms
-- Answers 1, or 0 if a third one is the owner.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] and owner ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1
