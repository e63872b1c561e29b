-- Move a node job, guarded by its state, its attempt and its node. The table of moves is the
-- caller's: this script only compares.
-- KEYS[1] job
-- ARGV[1] attempt that moves
-- ARGV[2] node that must be the job's, or empty
-- ARGV[3] states it may move from, each between commas: ",A,B,"
-- ARGV[4] states in which this attempt has made the move already, written likewise
-- ARGV[5] state in which the node is not compared (a first dispatch), or empty
-- ARGV[6] state from which a job that made the move before moves on to the state written, or empty
-- ARGV[7] time to live, ms
-- ARGV[8..] fields and values to write; the first two are the state
-- Answers the result (moved, repeat, stale, illegal, missing), the state, the attempt and the home.
local found = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'node_id', 'home')
local state, attempt, node, home = found[1], found[2], found[3], found[4]
if not state then
  return {'missing', '', '0', ''}
end
if attempt ~= ARGV[1] then
  return {'stale', state, attempt, home}
end
if ARGV[2] ~= '' and state ~= ARGV[5] and node ~= ARGV[2] then
  return {'stale', state, attempt, home}
end
local mark = ',' .. state .. ','
if string.find(ARGV[3], mark, 1, true) then
  redis.call('HSET', KEYS[1], unpack(ARGV, 8))
  redis.call('PEXPIRE', KEYS[1], ARGV[7])
  found = redis.call('HMGET', KEYS[1], 'state', 'attempt')
  return {'moved', found[1], found[2], home}
end
if string.find(ARGV[4], mark, 1, true) then
  if state == ARGV[6] then
    state = ARGV[9]
    redis.call('HSET', KEYS[1], 'state', state)
  end
  return {'repeat', state, attempt, home}
end
return {'illegal', state, attempt, home}
