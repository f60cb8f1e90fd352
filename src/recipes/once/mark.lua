-- Prepended to each script that reads the mark of the last run.
--
-- KEYS, last  the mark: a HASH of at, by and token, written after a successful run

-- Returns at, by and token; none of them if there is no mark; or an error with the mark's key.
local function read_mark()
  -- `pcall` returns an error as a table instead of ending the script.
  local run, wrong = redis.pcall('HMGET', KEYS[#KEYS], 'at', 'by', 'token'), nil
  if run.err then
    wrong = string.find(run.err, 'WRONGTYPE') and 'a key of another type'
  elseif run[1] then
    wrong = not string.find(run[1], '^%d+$') and 'a mark of the last run whose time is not a number'
  elseif redis.call('EXISTS', KEYS[#KEYS]) == 1 then
    wrong = 'a mark of the last run without a time'
  end
  return wrong and redis.error_reply('WRONGMARK ' .. wrong .. ', at `' .. KEYS[#KEYS] .. '`') or run
end
