-- Prepended, after look.lua, to each script that acquires or refreshes a permit of the fair
-- semaphore.
--
-- KEYS[2]  its owners: a ZSET of each permit's token, with a number as its score: in the book the
--          counter's at the acquire, here 0
-- KEYS[3]  its counter: the last number that a program of the book took by `INCR`
--
-- One of the book's programs takes its number first and joins the owners later. If its rank is then
-- below the limit, it believes that it has a permit. All its numbers are above 0. So it ranks
-- behind each of our permits, which have 0, even one that was granted in between. The counter is
-- only read, so the numbers of the book's programs never start again.

-- Returns an error unless 0 precedes all numbers, including those to come.
local function wrong_numbers()
  local counter = redis.call('GET', KEYS[3])
  if counter and not string.find(counter, '^%d+$') then
    return redis.error_reply('WRONGKIND a semaphore whose counter is not a number')
  end
  for _, rank in ipairs({ 0, -1 }) do
    local number = redis.call('ZRANGE', KEYS[2], rank, rank, 'WITHSCORES')[2]
    if number and not string.find(number, '^%d+$') then
      return redis.error_reply('WRONGKIND a semaphore with an owner whose score is not a count')
    end
  end
end
