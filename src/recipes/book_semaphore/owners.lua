-- Prepended, after look.lua, to each script that acquires or refreshes a permit of the fair
-- semaphore.
--
-- KEYS[2]  its owners: a ZSET of each permit's token, with a number as its score: in the book the
--          counter's at the acquire, here 0
-- KEYS[3]  its counter: the last number that a program of the book took by `INCR`
--
-- A program of the book takes its number first and joins the owners later. If it then has a rank
-- below the limit, it believes that it has a permit. All of its numbers are above 0. So with 0 it
-- counts every permit of ours, and it cannot come in before one that was granted in between. The
-- counter is only read: its programs' numbers never begin again.

-- Returns an error unless 0 precedes all numbers, those to come included.
local function wrong_numbers()
  local counter = redis.call('GET', KEYS[3])
  if counter and not string.find(counter, '^%d+$') then
    return redis.error_reply('WRONGKIND a semaphore whose counter is no number')
  end
  for _, rank in ipairs({ 0, -1 }) do
    local number = redis.call('ZRANGE', KEYS[2], rank, rank, 'WITHSCORES')[2]
    if number and not string.find(number, '^%d+$') then
      return redis.error_reply('WRONGKIND a semaphore with an owner whose score is no count')
    end
  end
end
