-- KEYS, ARGV[1] and ARGV[2] as in levels.lua: the token is that of the acquisition to release
-- ARGV[3]  1 to release only an acquisition that was counted, 0 to release also a level of the
--          notes' scripts
-- returns  our count of the lock before the release: 0 not held, 1 it is free now, n it is still
--          held n - 1 times; or an error that begins with COMPANION if only the companion keeps us
--          from releasing
--
-- Safe to send twice: the field of a released acquisition is gone, and `released` has the last one.
-- If ARGV[3] is 0, an unknown token releases a level acquired by a program without a companion, but
-- only once all acquisitions with a field have been released. Everything that can fail is checked
-- before the first write. The lock is written last: if the server refuses us that command, the lock
-- ends with its lease and is never decremented twice.
local answer = read_lock_and_companion()
if answer then
  return answer
end

if known and ends[ours] then
  redis.call('HDEL', KEYS[2], ours)
  ends[ours], live = nil, live - 1
elseif beside[ours] or beside.released == ARGV[2] or live > 0 or ARGV[3] == '1' then
  -- The four conditions, in order: the acquisition has ended, or belongs to an earlier hold; this
  -- release is a repeat; levels of ours remain, which only their own tokens release; the caller
  -- releases no level of the notes' scripts.
  return 0
elseif not known then
  -- A level of a program without a companion gets a companion now, so that this release can be
  -- recorded. Its token was not used to acquire the level, but names it from now on.
  start_companion()
  outlive(redis.call('PTTL', KEYS[1]), 0)
end
remove_over()
redis.call('HSET', KEYS[2], 'released', ARGV[2])

-- If all remaining levels are ours, the key ends with the last of them. The millisecond of an end
-- still belongs to the lease: with 0 ms left the lock is held, and the key ends a millisecond
-- later, since `PEXPIRE` with 0 would delete it now.
local left = last_end() - now
if counted > 1 and (counted - 1 > live or left >= 0) then
  set_count(counted - 1)
  if counted - 1 == live and redis.call('PTTL', KEYS[1]) > left + 1 then
    end_at(now + left + 1, true)
  end
  return counted
end
-- The last release deletes the hash, and removes `hold`: the companion then belongs to no hold.
redis.call('HDEL', KEYS[2], 'hold')
redis.call('DEL', KEYS[1])
return 1
