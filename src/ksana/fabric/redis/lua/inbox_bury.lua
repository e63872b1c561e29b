-- Move messages that were handed out too often to the dead letters.
-- KEYS[1] inbox
-- KEYS[2] dead letters
-- ARGV[1] group
-- ARGV[2] consumer that takes them over to move them
-- ARGV[3] how long a message must have been left alone, ms
-- ARGV[4] deliveries from which on it is dead
-- ARGV[5] how many messages to look at
-- ARGV[6] length to trim the dead letters to
-- ARGV[7] the instance whose inbox it is
-- Answers how many were moved.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', ARGV[5])
local moved = 0
for _, entry in ipairs(pending) do
  local id, deliveries = entry[1], entry[4]
  if deliveries >= tonumber(ARGV[4]) then
    local claimed = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], id)
    if claimed[1] and claimed[1][2] then
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', 'm', claimed[1][2][2],
        'deliveries', deliveries, 'instance', ARGV[7], 'moved_ms', now)
      moved = moved + 1
    end
    redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('XDEL', KEYS[1], id)
  end
end
return moved
