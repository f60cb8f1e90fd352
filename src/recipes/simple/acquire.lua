-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds, 0 for a lock without an end
-- returns  1 if the lock is ours, 0 if somebody else has it
--
-- Safe to send twice: our own token is recognised. GET comes first, so a key of another type stops
-- the script before it has written. A refused attempt writes only if the lock has no end, and
-- nobody can release and retake the lock between the look at its end and the PEXPIRE.

local holder = redis.call('GET', KEYS[1])
local with_end = ARGV[2] ~= '0'

-- It has become free since: we take it, value and end in one command, so that there is no moment at
-- which it has no end.
if not holder then
  if with_end then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  else
    redis.call('SET', KEYS[1], ARGV[1])
  end
  return 1
end

-- We have it: an earlier attempt got through, and only its answer was lost. The lock gets its end
-- anew.
if holder == ARGV[1] then
  if with_end then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end

-- Somebody else has it. A lock without an end gets one, so that a holder that died keeps nobody
-- out. An end that is there is left alone.
if with_end and redis.call('PTTL', KEYS[1]) == -1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
