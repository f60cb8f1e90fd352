-- KEYS, ARGV[1] and ARGV[2] as in levels.lua: the token is that of the acquisition to give back
-- ARGV[3]  1 if only an acquisition that was counted may be given back, 0 if also what a program on
-- the notes' scripts took
-- returns  how often we held the lock until now: 0 not at all, 1 it is free now, n it is still held
-- n - 1 times
--
-- Safe to send twice: the field of an acquisition that was given back is gone, and `released` names
-- the last one. If ARGV[3] is 0, a token that the companion does not know gives back what a program
-- without a companion has taken, once no acquisition with a companion is left. Whatever can fail is
-- looked at before the first write. The lock is written last: if that command is forbidden to us,
-- the lock ends with its lease, and is never counted down twice.
local answer = look_at_both('')
if answer then
  return answer
end

if known and ends[ours] then
  redis.call('HDEL', KEYS[2], ours)
  ends[ours], live = nil, live - 1
elseif beside[ours] or beside.released == ARGV[2] or live > 0 or ARGV[3] == '1' then
  -- Its end has passed, or its hold is over: it must not free the next one. Or it is the same
  -- release, sent again. Or a level of ours is given back by its own token only.
  return 0
elseif not known then
  -- What a program without a companion has taken gets one now, so that this release can be
  -- remembered. The token was not acquired here, but names it.
  tell_of_this_hold()
  outlive(redis.call('PTTL', KEYS[1]), 0)
end
forget_over()
redis.call('HSET', KEYS[2], 'released', ARGV[2])

-- What is left of the hold if all of it is ours: the key ends with the last of the acquisitions. An
-- end is a whole millisecond, and all of that belongs to the lease. So with none left it is held
-- still, and the key ends a millisecond later: `PEXPIRE` by 0 would delete it now.
local left = last_end() - now
if counted > 1 and (counted - 1 > live or left >= 0) then
  set_count(counted - 1)
  if counted - 1 == live and redis.call('PTTL', KEYS[1]) > left + 1 then
    end_at(now + left + 1, true)
  end
  return counted
end
-- The last one removes the hash, and `hold` from the companion, which belongs to no hold now.
redis.call('HDEL', KEYS[2], 'hold')
redis.call('DEL', KEYS[1])
return 1
