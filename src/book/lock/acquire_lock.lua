-- KEYS[1]  the lock: a STRING, its holder's token
-- ARGV[1]  our token
-- ARGV[2]  the lease in milliseconds, 0 for a lock without an end
-- returns  1 if the lock is ours, 0 if another holder has it
--
-- Safe to send twice: our token is recognised. GET comes first, so a key of another type stops the
-- script before its first write. A refused attempt writes only if the lock has no end. No one can
-- release and acquire the lock between PTTL and PEXPIRE.

local holder = redis.call('GET', KEYS[1])
local with_end = ARGV[2] ~= '0'

-- The lock is free. One command sets value and end, so that it never exists without its end.
if not holder then
  if with_end then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  else
    redis.call('SET', KEYS[1], ARGV[1])
  end
  return 1
end

-- The lock is ours: an earlier attempt succeeded, and only its reply was lost. Its end is set
-- again.
if holder == ARGV[1] then
  if with_end then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end

-- Another holder has it. A lock without an end gets one, so that a dead holder does not block the
-- lock forever. An existing end stays.
if with_end and redis.call('PTTL', KEYS[1]) == -1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
