-- Remove an owner key, or any other key that holds our instance id, if it is ours.
-- KEYS[1] the key
-- ARGV[1] our instance id
-- Answers 1, or 0 if it is somebody else's.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1
